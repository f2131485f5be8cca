"""Values that several services speak of: a partition's key, the role of a fence, leader epochs, the state of a log.

Pure, and without anything of the services, of etcd or of protobuf: whoever needs one of these imports it from here, and
no service's room.
"""
