"""Bytes of the native protocol: frames. Their content is in `antiphon.model`. Used by node and client alike."""
