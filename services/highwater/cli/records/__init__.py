"""Records as commands read and print them: lines, fields, formats, and files of tables."""
