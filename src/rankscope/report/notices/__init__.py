"""The verdict, told where people and schedulers look: chats, pagers, commands of their own, a pod's termination log."""
