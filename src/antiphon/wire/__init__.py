"""The native protocol: frames, requests and the cluster metadata that they carry. Used by node and client alike."""
