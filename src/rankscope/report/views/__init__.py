"""What a report shows beside the verdict, as values: source lines, stacks, calls, waits, time, tables. No markup."""
