"""The models, the search and the translator. Every saved checkpoint contains copies of these files. Therefore
the files import nothing from the other folders of the package.
"""
