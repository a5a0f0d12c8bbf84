"""The documents of a Source as files in a folder, which any web server can serve."""

from rsnotify_publisher.documents.document_store import DocumentStore, WritingStopped

__all__ = ["DocumentStore", "WritingStopped"]
