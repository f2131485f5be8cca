"""Values with a type: bytes of records as structs of Arrow columns, by a schema that the user gives.

`ValueOptions` says which format and schema; `typed_columns` is what a read does with it. A decoder belongs to each
format (`json_values`, `avro_values`, `protobuf_values`). Nothing here knows of Spark or of the log.
"""
