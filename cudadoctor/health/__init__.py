"""How fast and how sound the GPUs are: measured in the examined interpreter, judged here.

`measured` makes values of what the child said, `judging` compares them, `page` shows them;
`command` alone touches the world.
"""
