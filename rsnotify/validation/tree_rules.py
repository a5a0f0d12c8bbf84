"""The rules on references between documents, and on packages."""

from __future__ import annotations

from rsnotify.validation.findings import parse_rules

TREE_RULES = parse_rules("""
# Between documents.
tree-unreachable: must, core §6.2
    the document that an entry names cannot be fetched; serve it, or remove the entry
tree-not-followed: should, core §6.2
    the document that an entry names was not checked
tree-up: must, core §6.2
    up must lead to the document above, which lists this one; correct one of the two
tree-capability: must, core §6.1
    the document is not of the kind stated where it is listed; correct one of the two
tree-index: must, core §6.2
    the link index must lead to an index that lists the document
tree-index-missing: should, core §6.2
    a document listed by an index should link to it; add an rs:ln with rel index
tree-index-nested: must, core §7
    an index groups documents of the urlset format; an index must not list an index
tree-times: must, core §7
    at, completed, from or until of the entry differ from those of the document itself
tree-until-missing: must, core §12.2
    the list is closed, so that its entry must have until
tree-until-early: must, core §12.2
    the list is open, so that its entry must not have until
tree-contents: must, core §11.1
    the Manifest that contents leads to must equal that in the package
tree-well-known: should, core §6.3.2
    a Source Description should be at /.well-known/resourcesync of the host; publish it there
# Packages.
package-format: should, core §11.1
    the package is not a readable ZIP file; only programs that know its format can read it
package-unsafe: must, core §11.2
    a member of the package has a name or form that no reader should unpack
package-manifest-missing: must, core §11.2
    a package must have a file manifest.xml at its top level; add the Manifest
package-path-missing: must, core §11.2
    the package has no file at this path of its Manifest; add it, or correct the path
package-not-described: should, core §11.2
    the Manifest does not describe a file of the package; add an entry
package-content: must, core §7
    the content does not have the stated hash or length
""")
