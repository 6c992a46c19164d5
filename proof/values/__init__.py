"""Compare what Holdfast computes with Spark and with a model in plain Python, over random inputs.

    plain        values without the types of any library: how the model sees them, and how they become Arrow
    drawing      random types, values and rows, the edges of each type first
    model        folds, written without any code of the product
    checking     comparisons, their counts, and the reduction of a failing case
    aggregates   `keyed().agg()` and windows of it, one row at a time
    calls        functions that are called key by key, with timers; `processors` runs the same cases
    histories    a job that is changed, dies, goes back and is forked, with the sinks of `sinks`
    stored_query  the query of such a history, which runs without Spark
    seeds        inputs that once gave wrong results

Each case is a function of a seed. Start with `aggregates`.
"""
