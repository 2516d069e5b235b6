"""The programs that load a cluster, one process each.

A client is told its job as JSON, its only argument. It connects, warms up, prints `ready`, waits for a line, works for as
long as the job says, and prints one line of JSON: what was acknowledged (`count`), in what time (`seconds`), what was
refused (`failed`), and the latencies in microseconds (`hdr`, an encoded HDR histogram; absent where an operation has none).
The programs in `go/` do the same.
"""
