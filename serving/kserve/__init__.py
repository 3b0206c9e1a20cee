"""The open inference protocol (KServe V2, Triton): the methods that Python answers, gRPC and HTTP."""
