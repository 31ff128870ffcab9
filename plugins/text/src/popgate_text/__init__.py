"""Text models: folders in the form of sentence-transformers, served unchanged.

A plugin of PopGate (docs/how-to/write-a-plugin.md): `format` recognises and converts
the folder,
`scheduler` turns strings into token ids in front of the model, `routes` speak the
protocols of OpenAI and of text-embeddings-inference. Runs in the gateway's process;
`conversion` runs in the process that compiles. May import of PopGate: `app`, `engine`,
`popef_io`.
"""
