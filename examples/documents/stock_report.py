#!/usr/bin/env python3
"""Weekly stock report for a small warehouse.

Reads movements (CSV: date, sku, quantity; receipts positive, issues negative)
and prints, for each article, the stock, the average weekly use over the last
four full weeks, how many weeks the stock will last, and what to order.

    stock_report.py movements.csv [--today 2025-10-13]
"""

import argparse
import csv
import datetime as dt
import math
import sys
from collections import defaultdict

LEAD_TIME_WEEKS = 3
SAFETY_WEEKS = 1
WEEKS_OF_HISTORY = 4


def read_movements(path):
    """Yield (date, sku, quantity) for every row of the file."""
    with open(path, newline="", encoding="utf-8") as f:
        for number, row in enumerate(csv.DictReader(f), start=2):
            try:
                yield dt.date.fromisoformat(row["date"]), row["sku"].strip(), int(row["quantity"])
            except (KeyError, ValueError) as err:
                print(f"{path}:{number}: skipped: {err}", file=sys.stderr)


def group_by_sku(movements):
    """Collect the movements of each article."""
    groups = defaultdict(list)
    for date, sku, quantity in movements:
        groups[sku].append((date, quantity))
    return groups


def monday_of(day):
    return day - dt.timedelta(days=day.weekday())


def weekly_use(moves, today):
    """Return the average number issued per week over the last full weeks."""
    end = monday_of(today)
    start = end - dt.timedelta(weeks=WEEKS_OF_HISTORY)
    issued = defaultdict(int)
    for date, quantity in moves:
        if start <= date <= end and quantity < 0:
            issued[monday_of(date)] += -quantity
    if not issued:
        return 0.0
    return sum(issued.values()) / len(issued)


def to_order(stock, use):
    """Return how many to order so that stock covers lead time and safety."""
    wanted = use * (LEAD_TIME_WEEKS + SAFETY_WEEKS)
    return max(0, math.ceil(wanted - stock))


def report(path, today):
    groups = group_by_sku(read_movements(path))
    print(f"{'article':<12}{'stock':>8}{'use/week':>10}{'lasts':>8}{'order':>8}")
    for sku in sorted(groups):
        moves = groups[sku]
        stock = sum(quantity for _, quantity in moves)
        use = weekly_use(moves, today)
        lasts = f"{stock / use:.1f} w" if use else "-"
        print(f"{sku:<12}{stock:>8}{use:>10.1f}{lasts:>8}{to_order(stock, use):>8}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("movements")
    parser.add_argument("--today", type=dt.date.fromisoformat, default=dt.date.today())
    args = parser.parse_args()
    report(args.movements, args.today)


if __name__ == "__main__":
    main()
