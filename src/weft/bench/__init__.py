"""The benchmark: weft beside its peers, in the same process, round by round; and the page made of the rows.

`run` starts one worker process per problem and watches it. `worker` is that process, and `peers` adapts each library.
`inputs`, `timing` and `check` make tensors, times and errors. `rows` is the file format, and `report` writes the pages.
torch is imported in workers only.
"""
