"""Items flow through stages in a background thread: sources, sync and async functions, batching, branches.

A pipeline is described by values (`PipelineConfig`, most easily made by `PipelineBuilder`) and run by a `Pipeline`.
"""
