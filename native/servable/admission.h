#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "native/base/portioned_count.h"
#include "native/base/sharded.h"
#include "native/base/status.h"
#include "native/servable/left_right.h"

namespace millpond::servable {

// Limits how many requests are in flight, in the server and for each model. A request is in flight
// from its arrival until it is answered, whether it waits or runs.
//
// One object serves all protocols. Enter is lock-free: it costs one atomic, of the thread's own
// cache line for most requests (PortionedCount). If any model has a limit, it also costs a look-up
// and an atomic of the model. At a limit, threads that enter at the same time may cause each
// other's refusal. They never exceed the limit.
class Admission {
 public:
  // More requests than healthy clients have in flight, with many connections of many streams each.
  // Fewer requests than would make the last one wait for longer than its deadline: half a second of
  // a fast model's requests.
  static constexpr int64_t kDefaultTotalLimit = 4'096;

  // The limit of each model, by the model's name. A model without an entry has no limit of its own.
  using ModelLimits = std::map<std::string, int64_t>;

  class Ticket;

  // `total_limit` at least 1.
  explicit Admission(int64_t total_limit = kDefaultTotalLimit);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Returns a ticket for a request to `model`; the caller holds it until the request is answered.
  // Returns RESOURCE_EXHAUSTED at once, naming the limit, if the limit is reached.
  base::StatusOr<Ticket> Enter(std::string_view model);

  // Replaces the limits of all models. Each limit is at least 1. The requests of a model are
  // counted from the moment at which it first has a limit. Called by the control plane only.
  void SetModelLimits(const ModelLimits& limits);
  // True if any model has a limit. Otherwise Enter does not need the model's name.
  bool has_model_limits() const { return has_model_limits_.load(std::memory_order_relaxed); }

  // Returns how long a refused client should wait before it tries again, in milliseconds. The
  // values are spread, so that clients that were refused together do not return together.
  int64_t NextPushbackMs();

  int64_t total_limit() const { return total_limit_; }
  int64_t in_flight_count() const { return in_flight_.taken(); }
  // The number of requests refused since the server's start.
  int64_t refused_count() const { return refused_count_.load(std::memory_order_relaxed); }

 private:
  struct Model {
    std::atomic<int64_t> limit{0};  // 0: unlimited
    std::atomic<int64_t> in_flight_count{0};
  };
  using Models = std::map<std::string, Model*, std::less<>>;

  base::Status RefuseModel(std::string_view model, int64_t limit);
  void Leave(Model* model);

  const int64_t total_limit_;
  std::atomic<bool> has_model_limits_{false};
  base::PortionedCount in_flight_;
  alignas(base::kCacheLineBytes) std::atomic<int64_t> refused_count_{0};
  std::mutex write_mutex_;  // held by SetModelLimits
  // Every model that has ever had a limit, because a ticket may outlive the limit. The names come
  // from the operator and not from clients, so the map stays small.
  std::map<std::string, std::unique_ptr<Model>> known_models_;  // guarded by write_mutex_
  LeftRight<Models> models_;
};

// The place of one request in flight. It is given up when the ticket is destroyed or assigned to.
// An empty ticket holds no place. The Admission outlives its tickets.
class [[nodiscard]] Admission::Ticket {
 public:
  Ticket() = default;
  ~Ticket() { GiveUp(); }
  Ticket(Ticket&& other) noexcept
      : admission_(std::exchange(other.admission_, nullptr)), model_(other.model_) {}
  Ticket& operator=(Ticket&& other) noexcept {
    if (this == &other) return *this;
    GiveUp();
    admission_ = std::exchange(other.admission_, nullptr);
    model_ = other.model_;
    return *this;
  }

  explicit operator bool() const { return admission_ != nullptr; }

 private:
  friend class Admission;

  Ticket(Admission* admission, Model* model) : admission_(admission), model_(model) {}
  void GiveUp() {
    if (admission_ != nullptr) std::exchange(admission_, nullptr)->Leave(model_);
  }

  Admission* admission_ = nullptr;
  Model* model_ = nullptr;  // null if only the server's limit applies
};

}  // namespace millpond::servable
