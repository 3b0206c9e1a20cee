#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/wire_reader.h"
#include "native/tf/output_set.h"

namespace millpond::servable {

// What a new version has to be warm for: a version that has run one request of a kind is ready for
// the others. Cost of making one: 10 ns.
struct RequestKind {
  RequestKind() = default;
  RequestKind(std::string_view signature_name, const tf::OutputSet& outputs, size_t request_bytes);

  // Signature and set of outputs, hashed. Two pairs that hash alike count as one.
  uint64_t pair = 0;
  // The pair with the power of two below the request's bytes: other sizes take other memory, and
  // other kernels may run.
  uint64_t pair_and_size = 0;
  size_t request_bytes = 0;
};

// A serialized PredictRequest that a version has answered, or that says the same as a request of
// another method that it has.
struct SampledRequest {
  std::string bytes;
  uint64_t pair = 0;
  int64_t taken_ns = 0;
};

struct RequestReservoirLimits {
  size_t request_count_max = 64;  // 0: takes none
  size_t bytes_max = size_t{16} << 20;
  int64_t age_ns_max = 600'000'000'000;
};

struct RequestReservoirStatistics {
  size_t request_count = 0;
  size_t request_bytes = 0;
};

// Recent live requests of one model, which its next version replays before it is published.
//
// Holds the newest request of each pair of signature and set of outputs, then, as far as there is
// room, the newest of each size, then others at random: at most about 20 a second are taken, and a
// kind not seen in the last tenth of the longest age at once. It copies: requests lie in buffers of
// gRPC's that are not to be kept.
//
// Thread: any number at once, all methods. A request thread never waits here: it tries the lock and
// goes without a sample where that is taken, so an idle-priority reader holds nobody up.
// Owner: shared by the entries of the model's versions; outlives each.
// Time is passed in, of base::MonotonicNs's clock.
// Cost: Wants 1 to 2 ns. Take one copy and a pass over the samples, into the buffer of the sample
// that goes where sizes are alike, so that it touches no fresh pages once it is full. Memory:
// bytes_max at the most, buffers counted whole.
class RequestReservoir {
 public:
  explicit RequestReservoir(const RequestReservoirLimits& limits);
  ~RequestReservoir();
  RequestReservoir(const RequestReservoir&) = delete;
  RequestReservoir& operator=(const RequestReservoir&) = delete;

  // Returns the reservoir of the same model's requests that run several signatures as one: a
  // version is warm for them only once it has run the same signatures together. It keeps few, small
  // ones. Null if this is such a reservoir.
  RequestReservoir* joint() const { return joint_.get(); }

  // Whether a request that was answered just now should be given to Take. False for one larger than
  // a quarter of bytes_max.
  bool Wants(const RequestKind& kind, int64_t now_ns) const {
    if (kind.request_bytes > request_bytes_max_) return false;
    return now_ns >= next_sample_ns_.load(std::memory_order_relaxed) || !IsSeen(kind);
  }

  // Copies `request`, of kind.request_bytes, unless another thread is in here.
  void Take(const RequestKind& kind, base::WireReader request, int64_t now_ns);

  // Those that are not too old: the newest of each pair, then the second newest of each, and so on.
  // For the control plane: copies all of them, and waits for its turn.
  std::vector<SampledRequest> Requests(int64_t now_ns);

  // Takes no lock, so that nobody goes without a sample for being watched. The two may be of
  // different moments.
  RequestReservoirStatistics Statistics() const;

 private:
  RequestReservoir(const RequestReservoirLimits& limits, std::unique_ptr<RequestReservoir> joint);

  struct Sample {
    RequestKind kind;
    int64_t taken_ns = 0;
    // What room it takes is bytes.capacity().
    std::string bytes;
    bool is_newest_of_pair = false;
    bool is_newest_of_kind = false;
  };

  static constexpr size_t kSeenBitCount = 4'096;
  static constexpr size_t kWordBits = 64;
  static constexpr size_t kNone = SIZE_MAX;

  using SeenWords = std::array<std::atomic<uint64_t>, kSeenBitCount / kWordBits>;

  static size_t SeenWord(const RequestKind& kind) {
    return kind.pair_and_size % kSeenBitCount / kWordBits;
  }
  static uint64_t SeenBit(const RequestKind& kind) {
    return uint64_t{1} << (kind.pair_and_size % kWordBits);
  }
  bool IsSeen(const RequestKind& kind) const {
    return (seen_[SeenWord(kind)].load(std::memory_order_relaxed) & SeenBit(kind)) != 0;
  }

  // All of these with mutex_ held.
  void CountSamples();
  void MarkSeen(const RequestKind& kind, int64_t now_ns);
  void DropOld(int64_t now_ns);
  void MarkNotNewest(const RequestKind& kind);
  std::string MakeRoom(size_t bytes);
  size_t ChooseVictim(bool is_short_of_bytes);
  std::string Remove(size_t index);
  int64_t NextSampleNs(int64_t now_ns);

  const std::unique_ptr<RequestReservoir> joint_;
  const RequestReservoirLimits limits_;
  const size_t request_bytes_max_;
  // Relaxed: a thread that sees an old value takes a sample too many or too few.
  std::atomic<int64_t> next_sample_ns_;
  SeenWords seen_{};
  // Of samples_, for those who do not hold mutex_.
  std::atomic<size_t> request_count_{0};
  std::atomic<size_t> request_bytes_{0};

  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<Sample> samples_;
  size_t held_bytes_ = 0;  // sum of the capacities
  int64_t seen_since_ns_ = 0;
  std::minstd_rand random_;
};

}  // namespace millpond::servable
