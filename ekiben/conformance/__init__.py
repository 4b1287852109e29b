"""A suite of the Open Inference Protocol's points that any server can be checked with: `ekiben conformance URL`.

    options ─► command ─► survey (what the server says of itself, which models can be asked and how)
                        └► suite: each point of paths, infer_json, errors, binary, … ─► verdict ─► report

A point is a small function under a decorator that gives its number, what must hold, and the document that says so.
"""
