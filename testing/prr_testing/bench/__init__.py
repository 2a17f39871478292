"""The prefix-cache hit rate of whole agent traces on a real server: stock in three settings, ours in three.

`trace` reads conversations, `writing` turns an assistant message into what a model might have written, `run` replays
them on the servers and measures, `report` shows and saves the figures.
"""
