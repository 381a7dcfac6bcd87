"""Networks for tables, which a schema describes, and their model_fn.

    schema = inputs.Schema(features={"distance": "number", "carrier": "word"}, ...)
    Estimator(
        functools.partial(table_model, head=BinaryClassHead()),
        modules={
            "network": functools.partial(wide_and_deep, schema),
            "optimizer": lambda: keras.optimizers.Adagrad(0.05),
            "wide_optimizer": lambda: keras.optimizers.Ftrl(0.1),
        },
        config=RunConfig(model_dir="runs/flights"),
    )

From the bottom up; a file imports only files above it:

    columns      encoded features -> ids and numbers
    wide         the wide part: one table with a weight for each row
    deep         the deep part's input: vectors, one-hot categories, numbers
    tower        dense layers
    network      what all networks share
    linear       the wide part alone
    dnn          a tower; beside a wide part
    dcn_v2       cross layers and a tower
    deep_fm      products of pairs, a tower, and the wide part
    dlrm         products of pairs between two towers
    table_model  the model_fn
"""
