"""Contains the models, the search and the translator. A saved checkpoint contains copies of the files in this
folder that its model needs. Therefore the files in this folder import nothing from the other folders of the
package.
"""
