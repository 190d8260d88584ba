"""The stages in order, and what is kept between calls.

| modules | what they hold |
|---|---|
| `pipeline` | pattern -> Acsr -> plan -> backend, one line each |
| `tuner` `together` | candidates measured; one kernel of gradients against two tuned ones |
| `evidence` `rows` | what was measured, in the store and in files; its schema |
"""
