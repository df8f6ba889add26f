"""Contains the models, the search and the translator. A saved checkpoint contains
copies of the files in this folder. Therefore the files import nothing from the other folders of the package.
"""
