"""From verified solutions to reasoning DAGs with any OpenAI-compatible server, offline and once (sec:dag).

`pipeline.build` is the entry; `stages` words the requests and reads the answers; `chat.client` is the one border to
the network. Not covered: whether a statement is true. The judge is a model, and its acceptance is its opinion.
"""
