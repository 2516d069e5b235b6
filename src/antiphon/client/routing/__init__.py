"""What clients decide about leaders, retries, splits and outcomes: once, for the asynchronous and the blocking client.

It has no socket, no clock and no random source. A client says what happened, and when, and is told what to do next:

- `routes`: who leads which shard, what a failed try at a shard leads to, and which node is asked for metadata.
- `tries`: the tries of one call: how long to pause, whether to ask for newer metadata, when to give up.
- `outcomes`: whether a write that has no answer may have been carried out.
"""
