"""Defines `vaswani completion`, the command that prints a completion script for bash, zsh or fish."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from .arguments import COMMON_OPTIONS, Command, option_of
from .options import Options, RecipeKeyOptions, on_command_line
from .recipe_keys import read_keys

_BASH = """_vaswani() {
    local current="${COMP_WORDS[COMP_CWORD]}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="COMMANDS"
    else
        case "${COMP_WORDS[1]}" in
CASES
        esac
    fi
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ] || [ "${current#-}" != "$current" ]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    fi
}
complete -o default -F _vaswani vaswani
"""
# Call `bashcompinit`, so that zsh can run completion functions of bash.
_ZSH = "autoload -Uz compinit bashcompinit\ncompinit\nbashcompinit\n"


class CompletionOptions(Options):
    """The options of `vaswani completion`."""

    needs_libraries: ClassVar[bool] = False

    shell: Literal["bash", "zsh", "fish"] = on_command_line(positional=True)
    """the shell that runs the script"""


def run(options: CompletionOptions, commands: Mapping[str, Command]) -> None:
    """Print the completion script for the shell. `commands` maps the name of each command to the command."""
    words = {}
    for name, command in commands.items():
        fields = command.options.command_line().items()
        names = [option_of(field_name, field) for field_name, field in fields]
        names += ["--help", *(option for _, option, _ in COMMON_OPTIONS)]
        if issubclass(command.options, RecipeKeyOptions):
            for place, key in read_keys().items():
                names += [f"--{place}", f"--{key.key}"]
        words[name] = [name for name in dict.fromkeys(names) if name.startswith("--")]
    if options.shell == "fish":
        print(_fish_script(words, {name: command.help for name, command in commands.items()}))
        return
    cases = []
    for name, names in words.items():
        joined = " ".join(names)
        cases.append(f'            {name}) words="{joined}" ;;')
    script = _BASH.replace("COMMANDS", " ".join(words)).replace("CASES", "\n".join(cases))
    print((_ZSH if options.shell == "zsh" else "") + script, end="")


def _fish_script(words: dict[str, list[str]], helps: dict[str, str]) -> str:
    lines = ["complete -c vaswani -e"]
    for name, help in helps.items():
        quoted = help.replace("'", "")
        lines.append(f"complete -c vaswani -n __fish_use_subcommand -f -a {name} -d '{quoted}'")
    for name, names in words.items():
        for option in names:
            lines.append(
                f"complete -c vaswani -n '__fish_seen_subcommand_from {name}' -l {option.removeprefix('--')}"
            )
    return "\n".join(lines)
