"""`antiphon demo`: a year of flights through topics, tables and Spark into a lake, and the proof of the result."""
