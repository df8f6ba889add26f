# A container with `vaswani serve` on the CPU. docs/how_to/serve.md has the commands that build and run the container.
FROM python:3.13-slim

COPY constraints.txt dist/vaswani_hf-*.whl /install/
# The index of PyTorch has builds for the CPU without the CUDA libraries.
RUN pip install --no-cache-dir --constraint /install/constraints.txt \
        --index-url https://download.pytorch.org/whl/cpu torch \
    && pip install --no-cache-dir --constraint /install/constraints.txt \
        "$(echo /install/vaswani_hf-*.whl)[serve,ctranslate2]" \
    && rm -r /install

RUN useradd --create-home vaswani
USER vaswani
EXPOSE 5000
# The option --host needs an API key in the environment variable VASWANI_API_KEY.
ENTRYPOINT ["vaswani", "serve", "--host", "0.0.0.0"]
