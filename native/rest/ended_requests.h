#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/rest/content_coding.h"
#include "native/rest/rest_methods.h"
#include "native/servable/servable.h"

namespace millpond::rest {

// The end of a request, for the event loop to send.
struct EndedRequest {
  uint64_t id = 0;
  base::Status status;
  RestReply reply;  // set if the status is OK; its body is in `coding`
  ContentCoding coding = ContentCoding::kIdentity;
  std::optional<servable::ServableId> reached;  // the version that answered, or refused
};

// The requests that have ended, until the event loop takes them. Thread: any, at once. Lock-free: a
// request may end on a thread that also answers gRPC, which must not wait for a lock whose holder
// has lost its core.
class EndedRequests {
 public:
  EndedRequests() = default;
  ~EndedRequests() { (void)TakeAll(); }
  EndedRequests(const EndedRequests&) = delete;
  EndedRequests& operator=(const EndedRequests&) = delete;

  // Returns true if it is the only one.
  bool Add(EndedRequest ended) {
    auto* const node = new Node{std::move(ended), nullptr};
    Node* older = newest_.load(std::memory_order_relaxed);
    do {
      node->older = older;
    } while (!newest_.compare_exchange_weak(older, node, std::memory_order_acq_rel));
    // From here on the reader may have freed the node.
    return older == nullptr;
  }

  // Returns all, the oldest first.
  std::vector<EndedRequest> TakeAll() {
    std::vector<EndedRequest> taken;
    for (Node* node = newest_.exchange(nullptr, std::memory_order_acq_rel); node != nullptr;) {
      taken.push_back(std::move(node->ended));
      delete std::exchange(node, node->older);
    }
    std::reverse(taken.begin(), taken.end());
    return taken;
  }

 private:
  struct Node {
    EndedRequest ended;
    Node* older;
  };

  std::atomic<Node*> newest_{nullptr};
};

}  // namespace millpond::rest
