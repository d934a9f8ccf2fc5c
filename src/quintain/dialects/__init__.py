"""Pure conversion between `quintain.messages` and wire formats; no I/O, no state.

One module a format, each with the same six functions: `encode_messages`, `decode_messages`,
`encode_request`, `decode_request` (what a client sends), `encode_response`, `decode_response` (what
a model's server answers). A client needs encode_request and decode_response, a gateway the other
two.
"""
