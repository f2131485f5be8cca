"""`highwater groups`: consumer groups listed, described, reset and deleted."""
