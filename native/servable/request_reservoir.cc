#include "native/servable/request_reservoir.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "native/base/bit_width.h"

namespace millpond::servable {
namespace {

// A reservoir has room for at least four requests, so that one request never takes all of it.
constexpr size_t kRequestsPerReservoirMin = 4;

// The average time between two random samples. It is short enough that 64 samples are only seconds
// old. It is long enough that a copy of 20 KiB per sample does not show beside the requests.
constexpr int64_t kSampleIntervalNs = 50'000'000;

// How often a rare kind is sampled again within the longest age of a sample.
constexpr int64_t kRefreshesPerAge = 10;

// The limits for requests that run several signatures in one run. A version has room for as many
// joint runs, and a small request warms a run as well as a large request.
constexpr size_t kJointRequestCountMax = 16;
constexpr size_t kJointShareOfBytes = 16;

RequestReservoirLimits JointLimits(RequestReservoirLimits limits) {
  limits.request_count_max = std::min(limits.request_count_max, kJointRequestCountMax);
  limits.bytes_max /= kJointShareOfBytes;
  return limits;
}

uint64_t Mix(uint64_t hash) {
  hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}

// Returns the size of a buffer that fits each request of the same size class, so that the next
// request can reuse it. With the string's own last byte it is a power of two, which is a size class
// of allocators.
size_t BufferBytes(size_t request_bytes) {
  constexpr int kBitWidthMin = 5;  // the smallest buffer of a string
  return (size_t{1} << std::max(base::BitWidth(request_bytes), kBitWidthMin)) - 1;
}

}  // namespace

RequestKind::RequestKind(std::string_view signature_name, const tensor::OutputSet& outputs,
                         size_t request_bytes, bool has_exact_size)
    : pair(Mix(std::hash<std::string_view>()(signature_name) ^ outputs.Hash())),
      pair_and_size(
          Mix(pair + (has_exact_size ? request_bytes : size_t(base::BitWidth(request_bytes))))),
      request_bytes(request_bytes) {}

RequestReservoir::RequestReservoir(const RequestReservoirLimits& limits)
    : RequestReservoir(limits, std::unique_ptr<RequestReservoir>(
                                   new RequestReservoir(JointLimits(limits), nullptr))) {}

RequestReservoir::~RequestReservoir() = default;

RequestReservoir::RequestReservoir(const RequestReservoirLimits& limits,
                                   std::unique_ptr<RequestReservoir> joint)
    : joint_(std::move(joint)),
      limits_(limits),
      request_bytes_max_(limits.bytes_max / kRequestsPerReservoirMin),
      next_sample_ns_(0) {
  if (limits_.request_count_max > 0) return;
  // Makes Wants always return false, without another check in it.
  next_sample_ns_ = INT64_MAX;
  for (auto& word : seen_) word = ~uint64_t{0};
}

void RequestReservoir::Take(const RequestKind& kind, base::WireReader request, int64_t now_ns) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !Wants(kind, now_ns)) return;
  next_sample_ns_.store(NextSampleNs(now_ns), std::memory_order_relaxed);
  MarkSeen(kind, now_ns);
  DropOld(now_ns);
  MarkNotNewest(kind);
  const size_t buffer_bytes = std::min(BufferBytes(kind.request_bytes), request_bytes_max_);
  Sample sample{kind, now_ns, MakeRoom(buffer_bytes), true, true};
  sample.bytes.clear();
  request.AppendRest(&sample.bytes);
  held_bytes_ += sample.bytes.capacity();
  samples_.push_back(std::move(sample));
  CountSamples();
}

std::vector<SampledRequest> RequestReservoir::Requests(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  DropOld(now_ns);
  CountSamples();
  std::vector<const Sample*> newest_first;
  for (const Sample& sample : samples_) newest_first.push_back(&sample);
  const auto is_newer = [](const Sample* a, const Sample* b) { return a->taken_ns > b->taken_ns; };
  std::stable_sort(newest_first.begin(), newest_first.end(), is_newer);
  // Orders the samples by their place among the samples of the same pair.
  std::map<uint64_t, size_t> count_of_pair;
  std::multimap<size_t, const Sample*> by_place;
  for (const Sample* sample : newest_first) {
    by_place.emplace(count_of_pair[sample->kind.pair]++, sample);
  }
  std::vector<SampledRequest> requests;
  for (const auto& [place, sample] : by_place) {
    requests.push_back({sample->bytes, sample->kind.pair, sample->taken_ns});
  }
  return requests;
}

RequestReservoirStatistics RequestReservoir::Statistics() const {
  RequestReservoirStatistics statistics;
  statistics.request_count = request_count_.load(std::memory_order_acquire);
  statistics.request_bytes = request_bytes_.load(std::memory_order_relaxed);
  return statistics;
}

void RequestReservoir::CountSamples() {
  size_t request_bytes = 0;
  for (const Sample& sample : samples_) request_bytes += sample.bytes.size();
  request_bytes_.store(request_bytes, std::memory_order_relaxed);
  request_count_.store(samples_.size(), std::memory_order_release);
}

// Marks all kinds as unseen now and then. Otherwise the samples of rare kinds would grow old,
// because random samples are of the frequent kinds.
void RequestReservoir::MarkSeen(const RequestKind& kind, int64_t now_ns) {
  if (now_ns - seen_since_ns_ > limits_.age_ns_max / kRefreshesPerAge) {
    for (auto& word : seen_) word.store(0, std::memory_order_relaxed);
    seen_since_ns_ = now_ns;
  }
  seen_[SeenWord(kind)].fetch_or(SeenBit(kind), std::memory_order_relaxed);
}

void RequestReservoir::DropOld(int64_t now_ns) {
  for (size_t i = samples_.size(); i-- > 0;) {
    if (now_ns - samples_[i].taken_ns > limits_.age_ns_max) Remove(i);
  }
}

void RequestReservoir::MarkNotNewest(const RequestKind& kind) {
  for (Sample& sample : samples_) {
    if (sample.kind.pair == kind.pair) sample.is_newest_of_pair = false;
    if (sample.kind.pair_and_size == kind.pair_and_size) sample.is_newest_of_kind = false;
  }
}

// Removes samples until one of `bytes` has room. Returns a buffer of that size: the buffer of a
// removed sample, if one fits.
std::string RequestReservoir::MakeRoom(size_t bytes) {
  std::string buffer;
  while (!samples_.empty()) {
    const bool is_short_of_bytes = held_bytes_ + bytes > limits_.bytes_max;
    if (!is_short_of_bytes && samples_.size() < limits_.request_count_max) break;
    std::string removed = Remove(ChooseVictim(is_short_of_bytes));
    // A larger buffer is not reused, because its unused bytes count as held, too.
    if (removed.capacity() == bytes) buffer = std::move(removed);
  }
  if (buffer.capacity() < bytes) buffer.reserve(bytes);
  return buffer;
}

// Returns the sample whose loss costs least. Samples that are not the newest of their kind go
// first, one at random. Next comes the oldest sample that is the newest of its kind but not of its
// pair, and then the oldest newest of a pair. If bytes are short, the largest sample of the same
// worth goes, which keeps most of the others.
size_t RequestReservoir::ChooseVictim(bool is_short_of_bytes) {
  const auto worth = [](const Sample& sample) {
    return sample.is_newest_of_pair ? 2 : sample.is_newest_of_kind ? 1 : 0;
  };
  size_t victim = kNone;
  size_t random_choice_count = 0;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const Sample& sample = samples_[i];
    const bool is_first = victim == kNone || worth(sample) < worth(samples_[victim]);
    if (is_first) {
      victim = i;
      random_choice_count = 1;
      continue;
    }
    const Sample& chosen = samples_[victim];
    if (worth(sample) > worth(chosen)) continue;
    bool is_better = sample.taken_ns < chosen.taken_ns;
    if (is_short_of_bytes) {
      is_better = sample.bytes.capacity() > chosen.bytes.capacity();
    } else if (worth(sample) == 0) {
      is_better = random_() % ++random_choice_count == 0;
    }
    if (is_better) victim = i;
  }
  return victim;
}

// Removes the sample at `index` and returns its buffer. The newest marks of the others stay valid:
// a newest sample goes only after the other samples of its kind or pair, for room or by age.
std::string RequestReservoir::Remove(size_t index) {
  Sample removed = std::move(samples_[index]);
  held_bytes_ -= removed.bytes.capacity();
  if (index + 1 != samples_.size()) samples_[index] = std::move(samples_.back());
  samples_.pop_back();
  return std::move(removed.bytes);
}

// Returns a random time, so that samples do not keep step with a client that sends at fixed
// intervals.
int64_t RequestReservoir::NextSampleNs(int64_t now_ns) {
  return now_ns + std::uniform_int_distribution<int64_t>(kSampleIntervalNs / 2,
                                                         kSampleIntervalNs * 3 / 2)(random_);
}

}  // namespace millpond::servable
