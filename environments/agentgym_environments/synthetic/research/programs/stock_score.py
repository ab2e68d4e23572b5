def score(out, y, terms):
    """Mean cost of a day. Each morning stock on hand and on order is filled up to that day's level of `out`; an order
    comes `lead` days later. Then y is asked for; what is not there is owed. A unit left costs `hold`, one owed `short`.
    """
    stock, coming, cost = 0.0, [0.0] * terms["lead"], 0.0
    for day, (level, demand) in enumerate(zip(out, y)):
        coming.append(max(0.0, level - stock - sum(coming)))
        stock += coming.pop(0) - demand
        if day >= terms["lead"]:
            cost += terms["hold"] * stock if stock > 0 else -terms["short"] * stock
    return float(cost / (len(y) - terms["lead"]))
