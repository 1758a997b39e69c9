"""One job on many machines: what each of them sees reaches one place, over the rendezvous store."""
