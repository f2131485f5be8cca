"""Values with a type: bytes of records as structs of Arrow columns, by a schema that the user gives.

`ValueOptions` names format and schema; a read uses `typed_columns`. A decoder belongs to each format (`json_values`,
`avro_values`, `protobuf_values`). Nothing here knows of Spark or of the log. Imports no other room, but for the
`OptionError` of `errors`.
"""
