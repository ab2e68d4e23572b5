"""ScienceWorld: experiments of primary school in ten rooms, in a Java virtual machine."""
