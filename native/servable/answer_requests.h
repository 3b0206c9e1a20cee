#pragma once

#include "native/servable/batch_queue.h"

namespace millpond::servable {

// Answers `first`, and the requests of `waiting` that can share its run.
//
// Theory of operation. A thread takes the oldest request of its queue and decodes it. If requests
// to its signature are batched, the thread takes the waiting requests with the same key one after
// the other, decodes each, and adds it to the batch, as long as RoomForNextRequest (batch_size.h)
// says so. Then it joins their rows, runs once, and encodes and answers each request. A request
// that is alone goes the same way and is not copied. No thread waits for further requests to come.
// While a thread runs a batch, they queue, and the thread that is free next takes them as one
// batch. So batches grow with the load by themselves.
//
// A request that turns out not to fit (other outputs, another shape) ends the batch, and begins the
// next one as soon as the first one is answered. A large request runs in pieces, and small requests
// that wait have turns in between.
//
// Thread: one that answers requests. `first` and `waiting` outlive the call.
void AnswerRequests(WaitingRequest* first, WaitingRequests* waiting);

}  // namespace millpond::servable
