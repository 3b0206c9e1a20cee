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
#include "native/tensor/output_set.h"

namespace millpond::servable {

// The kind of a request. A version that has run one request of a kind is warm for the other
// requests of that kind. Cost of making a kind: 10 ns.
struct RequestKind {
  RequestKind() = default;
  // With `has_exact_size` each size is a kind of its own, for Servable::CompilesEachShape.
  RequestKind(std::string_view signature_name, const tensor::OutputSet& outputs,
              size_t request_bytes, bool has_exact_size = false);

  // The hash of the signature and the set of outputs. Two pairs with the same hash count as one
  // pair.
  uint64_t pair = 0;
  // The hash of the pair and of the request's bytes, or of the power of two below them. A request
  // of another size takes other memory, and may run other kernels.
  uint64_t pair_and_size = 0;
  size_t request_bytes = 0;
};

// A serialized PredictRequest that a version has answered. A request of another method is converted
// to the PredictRequest of the same meaning.
struct SampledRequest {
  std::string bytes;
  uint64_t pair = 0;
  int64_t taken_ns = 0;
};

struct RequestReservoirLimits {
  size_t request_count_max = 64;  // 0: takes no samples
  size_t bytes_max = size_t{16} << 20;
  int64_t age_ns_max = 600'000'000'000;
};

struct RequestReservoirStatistics {
  size_t request_count = 0;
  size_t request_bytes = 0;
};

// Recent live requests of one model. The next version of the model replays them before it is
// published.
//
// It holds the newest request of each pair of signature and set of outputs. In the remaining room
// it holds the newest request of each size, and then requests chosen at random. It takes at most
// about 20 random samples a second. It takes a kind at once if it has not seen that kind in the
// last tenth of the longest age. It copies each sample, because a request that is kept would keep
// the whole blocks into which its connection was read.
//
// Thread: any number at once, all methods. A request thread never waits here: it tries the lock,
// and takes no sample if the lock is held. So a reader of idle priority never delays a request.
// Owner: shared by the entries of the model's versions; outlives each of them.
// Time is passed in, as of base::MonotonicNs.
// Cost: Wants takes 1 to 2 ns. Take makes one copy and one pass over the samples. If the removed
// sample has the same size class, Take reuses its buffer, so that a full reservoir touches no fresh
// pages.
// Memory: at most bytes_max, with buffers counted whole.
class RequestReservoir {
 public:
  explicit RequestReservoir(const RequestReservoirLimits& limits);
  ~RequestReservoir();
  RequestReservoir(const RequestReservoir&) = delete;
  RequestReservoir& operator=(const RequestReservoir&) = delete;

  // Returns the reservoir of the model's requests that run several signatures in one run. A version
  // is warm for such a request only if it has run the same signatures together. This reservoir
  // keeps few and small requests. Returns null if this is such a reservoir itself.
  RequestReservoir* joint() const { return joint_.get(); }

  // True if a request that was answered just now should be passed to Take. False for a request
  // larger than a quarter of bytes_max.
  bool Wants(const RequestKind& kind, int64_t now_ns) const {
    if (kind.request_bytes > request_bytes_max_) return false;
    return now_ns >= next_sample_ns_.load(std::memory_order_relaxed) || !IsSeen(kind);
  }

  // Copies `request`, which has kind.request_bytes, unless another thread holds the lock.
  void Take(const RequestKind& kind, base::WireReader request, int64_t now_ns);

  // Returns the samples that are not too old: the newest of each pair, then the second newest of
  // each pair, and so on. For the control plane: it waits for the lock and copies all samples.
  std::vector<SampledRequest> Requests(int64_t now_ns);

  // Returns the number of samples and their bytes. It takes no lock, so that no request goes
  // without a sample because of it. The two numbers may be of different moments.
  RequestReservoirStatistics Statistics() const;

 private:
  RequestReservoir(const RequestReservoirLimits& limits, std::unique_ptr<RequestReservoir> joint);

  struct Sample {
    RequestKind kind;
    int64_t taken_ns = 0;
    // The room that the sample takes is bytes.capacity().
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

  // The caller of each of these functions holds mutex_.
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
  // Relaxed: a thread that reads an old value takes one sample too many or too few.
  std::atomic<int64_t> next_sample_ns_;
  SeenWords seen_{};
  // The count and the bytes of samples_, for threads that do not hold mutex_.
  std::atomic<size_t> request_count_{0};
  std::atomic<size_t> request_bytes_{0};

  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<Sample> samples_;
  size_t held_bytes_ = 0;  // the sum of the capacities
  int64_t seen_since_ns_ = 0;
  std::minstd_rand random_;
};

}  // namespace millpond::servable
