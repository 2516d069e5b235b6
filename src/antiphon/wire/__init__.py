"""Bytes of the native protocol: frames. What they carry is in `antiphon.model`. Used by node and client alike."""
