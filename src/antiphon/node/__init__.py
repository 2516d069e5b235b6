"""The shell around the pure parts: sockets, timers, disks."""
