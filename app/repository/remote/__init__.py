"""Models from elsewhere: listed, downloaded into a cache, looked at again.

Runs in the gateway process, in threads of its own, and in `popgate validate`. May
import `config`, `observe` and the ground; nothing of `repository` besides itself.
"""
