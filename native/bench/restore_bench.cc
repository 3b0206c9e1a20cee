// Measures how much a restore slows down requests beside it, and how long it takes. Compares the
// ways from the page cache into the parameters. A victim thread on core 0 does the work of a
// request to the CTR model: it reads rows of 64 B from all over a table, and multiplies with a
// weight matrix that should stay in the cache. Core 1 restores a checkpoint meanwhile, again and
// again.
//
// Usage: restore_bench CHECKPOINT_PREFIX [MiB of weights, 1] [rounds, 5] The prefix is like
// build/demo/rows-300000/served/ctr/1/variables/variables. The files are read once first, so that
// they are in the page cache. The destination is written once, so that none of its pages is fresh.
// All times are times on the core, because the machine may have other work.
#include <emmintrin.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/bench/measure.h"
#include "native/tf/checkpoint_index.h"
#include "native/tf/crc32c.h"
#include "native/tf/shard_reader.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "xla/tsl/lib/hash/crc32c.h"

namespace millpond::bench {
namespace {

using tf::CheckpointEntry;

constexpr size_t kHugePageBytes = 2 << 20;
constexpr size_t kLineBytes = 64;

void PinTo(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) != 0) std::perror("pinning");
}

void Die(const std::string& message) {
  std::fprintf(stderr, "restore_bench: %s\n", message.c_str());
  std::exit(1);
}

// Memory in huge pages, like a slab. Its pages are written once.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    bytes_ = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    data_ = static_cast<char*>(std::aligned_alloc(kHugePageBytes, bytes_));
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 1, bytes_);
  }
  ~Memory() { std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  char* data_;
};

// --- The victim ---

class Victim {
 public:
  explicit Victim(int weight_mebibytes)
      : weights_(size_t{1} * weight_mebibytes << 20),
        input_(weights_.bytes() / sizeof(float) / kWidth, 0.5F) {}

  // Runs requests until `is_over`. Returns the latency of each.
  std::vector<int64_t> Run(const std::atomic<bool>& is_over) {
    PinTo(0);
    std::vector<int64_t> latencies_ns;
    while (!is_over.load(std::memory_order_relaxed)) {
      const int64_t start_ns = ThreadCpuNs();
      Request();
      latencies_ns.push_back(ThreadCpuNs() - start_ns);
    }
    return latencies_ns;
  }

 private:
  static constexpr int kRowsPerRequest = 26 * 100;
  static constexpr size_t kWidth = 512;

  void Request() {
    float sum = 0;
    for (int row = 0; row < kRowsPerRequest; ++row) {
      random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
      const size_t line = (random_ >> 33) % (table_.bytes() / kLineBytes);
      float value = 0;
      std::memcpy(&value, table_.data() + line * kLineBytes, sizeof value);
      sum += value;
    }
    input_[0] = sum;
    const auto* const weights = reinterpret_cast<const float*>(weights_.data());
    for (size_t row = 0; row < input_.size(); ++row) {
      for (size_t column = 0; column < kWidth; ++column) {
        output_[column] += weights[row * kWidth + column] * input_[row];
      }
    }
    Keep(output_);
  }

  const Memory table_{size_t{500} << 20};
  const Memory weights_;
  std::vector<float> input_;
  float output_[kWidth] = {};
  uint64_t random_ = 7;
};

// --- The ways of a restore ---

struct Checkpoint {
  std::string prefix;
  tf::CheckpointIndex index;
  std::vector<char*> destinations;  // one for each entry
};

using Restore = std::function<void(const Checkpoint&)>;

class MappedShard {
 public:
  explicit MappedShard(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDONLY);
    struct stat status {};
    if (descriptor < 0 || fstat(descriptor, &status) != 0) Die("cannot open " + path);
    descriptor_ = descriptor;
    bytes_ = status.st_size;
  }
  ~MappedShard() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), bytes_);
    close(descriptor_);
  }
  int descriptor() const { return descriptor_; }
  const char* data() {
    if (data_ == nullptr) {
      data_ = static_cast<const char*>(
          mmap(nullptr, bytes_, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor_, 0));
    }
    return data_;
  }

 private:
  int descriptor_ = -1;
  size_t bytes_ = 0;
  const char* data_ = nullptr;
};

MappedShard OpenShard(const Checkpoint& checkpoint) {
  return MappedShard(tensorflow::DataFilename(checkpoint.prefix, 0, 1));
}

void CheckCrc(const CheckpointEntry& entry, uint32_t crc32c) {
  if (crc32c != entry.crc32c) Die("wrong crc32c of " + entry.name);
}

// Calls `read_piece(offset in the file, to, bytes, &crc32c)` for the pieces of each tensor. Fails
// if a tensor's checksum is wrong.
template <typename ReadPiece>
void ForEachPiece(const Checkpoint& checkpoint, size_t piece_bytes, const ReadPiece& read_piece) {
  for (size_t i = 0; i < checkpoint.index.entries.size(); ++i) {
    const CheckpointEntry& entry = checkpoint.index.entries[i];
    uint32_t crc32c = 0;
    for (size_t done = 0; done < static_cast<size_t>(entry.size_bytes); done += piece_bytes) {
      const size_t bytes = std::min(piece_bytes, entry.size_bytes - done);
      read_piece(entry.offset_bytes + done, checkpoint.destinations[i] + done, bytes, &crc32c);
    }
    CheckCrc(entry, crc32c);
  }
}

void ReadInPlace(const Checkpoint& checkpoint, size_t piece_bytes) {
  const MappedShard shard = OpenShard(checkpoint);
  ForEachPiece(checkpoint, piece_bytes, [&](size_t offset, char* to, size_t bytes, uint32_t* crc) {
    if (pread(shard.descriptor(), to, bytes, offset) != static_cast<ssize_t>(bytes)) Die("pread");
    *crc = tf::ExtendCrc32c(*crc, to, bytes);
  });
}

// Copies past the caches. `to` must be a multiple of 16, as it is for every piece of a tensor here.
void StreamCopy(char* to, const char* from, size_t bytes) {
  constexpr size_t kPartBytes = sizeof(__m128i);
  size_t done = 0;
  for (; done + kPartBytes <= bytes; done += kPartBytes) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
  }
  std::memcpy(to + done, from + done, bytes - done);
  _mm_sfence();
}

void StreamBlocks(char* to, const char* from, size_t bytes, uint32_t* crc32c) {
  constexpr size_t kBlockBytes = 8 << 10;
  for (size_t done = 0; done < bytes; done += kBlockBytes) {
    const size_t block = std::min(kBlockBytes, bytes - done);
    *crc32c = tf::ExtendCrc32c(*crc32c, from + done, block);
    StreamCopy(to + done, from + done, block);
  }
}

void ReadAndStream(const Checkpoint& checkpoint, size_t piece_bytes) {
  const MappedShard shard = OpenShard(checkpoint);
  const std::unique_ptr<char[]> buffer(new char[piece_bytes]);
  ForEachPiece(checkpoint, piece_bytes, [&](size_t offset, char* to, size_t bytes, uint32_t* crc) {
    if (pread(shard.descriptor(), buffer.get(), bytes, offset) != static_cast<ssize_t>(bytes)) {
      Die("pread");
    }
    StreamBlocks(to, buffer.get(), bytes, crc);
  });
}

void MapAndStream(const Checkpoint& checkpoint, size_t piece_bytes) {
  constexpr size_t kAheadBytes = 4 << 10;
  MappedShard shard = OpenShard(checkpoint);
  const char* const file = shard.data();
  ForEachPiece(checkpoint, piece_bytes, [&](size_t offset, char* to, size_t bytes, uint32_t* crc) {
    for (size_t done = 0; done < bytes; done += kAheadBytes) {
      const char* const from = file + offset + done;
      const size_t block = std::min(kAheadBytes, bytes - done);
      for (size_t line = 0; line < block; line += kLineBytes) {
        _mm_prefetch(from + line + kAheadBytes, _MM_HINT_NTA);
      }
      *crc = tf::ExtendCrc32c(*crc, from, block);
      StreamCopy(to + done, from, block);
    }
  });
}

void ReadByShardReader(const Checkpoint& checkpoint) {
  tf::ShardReader shards(checkpoint.prefix, checkpoint.index.header.shard_count);
  for (size_t i = 0; i < checkpoint.index.entries.size(); ++i) {
    const CheckpointEntry& entry = checkpoint.index.entries[i];
    if (!shards.CheckHolds(entry).ok()) Die("a short shard");
    uint32_t crc32c = 0;
    for (int64_t done = 0; done < entry.size_bytes;) {
      const auto bytes = std::min<int64_t>(tf::ShardReader::kPieceBytes, entry.size_bytes - done);
      if (!shards.ReadPiece(entry, done, bytes, checkpoint.destinations[i] + done, &crc32c).ok()) {
        Die("ShardReader");
      }
      done += bytes;
    }
    CheckCrc(entry, crc32c);
  }
}

void ReadByBundleReader(const Checkpoint& checkpoint) {
  tensorflow::BundleReader reader(tensorflow::Env::Default(), checkpoint.prefix);
  for (const CheckpointEntry& entry : checkpoint.index.entries) {
    // BundleReader's way: the destination is allocated here and fresh, as in the stock runtime.
    tensorflow::Tensor tensor(entry.dtype, entry.shape);
    if (!reader.Lookup(entry.name, &tensor).ok()) Die("BundleReader");
  }
}

// --- The measurement ---

struct Outcome {
  double seconds = 0;  // of one restore; 0 if there was no restore
  double p50_us = 0;
  double p99_us = 0;
};

double Quantile(std::vector<int64_t>& values_ns, double quantile) {
  const auto at = values_ns.begin() + static_cast<int64_t>(quantile * (values_ns.size() - 1));
  std::nth_element(values_ns.begin(), at, values_ns.end());
  return static_cast<double>(*at) / 1e3;
}

constexpr int64_t kMeasureNs = 2'000'000'000;

Outcome MeasureBeside(Victim& victim, const Checkpoint& checkpoint, const Restore& restore) {
  std::atomic<bool> is_over{false};
  std::vector<int64_t> latencies_ns;
  std::thread victim_thread([&] { latencies_ns = victim.Run(is_over); });
  const int64_t start_ns = base::MonotonicNs();
  const int64_t start_cpu_ns = ThreadCpuNs();
  int restore_count = 0;
  while (base::MonotonicNs() - start_ns < kMeasureNs) {
    if (restore != nullptr) {
      restore(checkpoint);
      ++restore_count;
    } else {
      base::SleepNs(1'000'000);
    }
  }
  Outcome outcome;
  if (restore_count > 0) {
    outcome.seconds = static_cast<double>(ThreadCpuNs() - start_cpu_ns) / 1e9 / restore_count;
  }
  is_over = true;
  victim_thread.join();
  outcome.p50_us = Quantile(latencies_ns, 0.5);
  outcome.p99_us = Quantile(latencies_ns, 0.99);
  return outcome;
}

double MedianOf(std::vector<Outcome>& outcomes, double Outcome::*figure) {
  std::sort(outcomes.begin(), outcomes.end(),
            [figure](const Outcome& a, const Outcome& b) { return a.*figure < b.*figure; });
  return outcomes[outcomes.size() / 2].*figure;
}

template <typename Extend>
void MeasureCrc(const char* name, const Extend& extend) {
  const Memory memory(256 << 20);
  const int64_t start_ns = base::MonotonicNs();
  uint32_t crc32c = 0;
  constexpr size_t kBlockBytes = 8 << 10;
  for (size_t done = 0; done < memory.bytes(); done += kBlockBytes) {
    crc32c = extend(crc32c, memory.data() + done, kBlockBytes);
  }
  Keep(&crc32c);
  const double seconds = static_cast<double>(base::MonotonicNs() - start_ns) / 1e9;
  std::printf("crc32c from memory, %s: %.1f GB/s\n", name,
              static_cast<double>(memory.bytes()) / 1e9 / seconds);
}

struct Way {
  const char* name;
  Restore restore;
  std::vector<Outcome> outcomes;
};

std::vector<Way> AllWays() {
  const auto in_pieces = [](void (*read)(const Checkpoint&, size_t), size_t kibibytes) {
    return [=](const Checkpoint& checkpoint) { read(checkpoint, kibibytes << 10); };
  };
  return {{"no restore", nullptr, {}},
          {"pread in place, whole tensors", in_pieces(ReadInPlace, 1 << 20), {}},
          {"pread in place, 64 KiB", in_pieces(ReadInPlace, 64), {}},
          {"pread in place, 256 KiB", in_pieces(ReadInPlace, 256), {}},
          {"pread 256 KiB, stream", in_pieces(ReadAndStream, 256), {}},
          {"mmap, prefetchnta, stream", in_pieces(MapAndStream, 256), {}},
          {"ShardReader (what the kernel does)", ReadByShardReader, {}},
          {"BundleReader, fresh memory", ReadByBundleReader, {}}};
}

void Run(const std::string& prefix, int weight_mebibytes, int rounds) {
  base::StatusOr<tf::CheckpointIndex> index = tf::ReadCheckpointIndex(prefix);
  if (!index.ok()) Die(index.status().message());
  Checkpoint checkpoint{prefix, std::move(index.value()), {}};
  int64_t total_bytes = 0;
  std::vector<int64_t> offsets;
  std::vector<CheckpointEntry> plain;
  for (const CheckpointEntry& entry : checkpoint.index.entries) {
    if (!tensorflow::DataTypeCanUseMemcpy(entry.dtype) || !entry.slices.empty()) continue;
    plain.push_back(entry);
    offsets.push_back(total_bytes);
    total_bytes += (entry.size_bytes + 63) / 64 * 64;
  }
  checkpoint.index.entries = std::move(plain);
  const Memory destination(total_bytes);
  for (const int64_t offset : offsets)
    checkpoint.destinations.push_back(destination.data() + offset);
  std::printf("%zu tensors, %.1f MB; %d MiB of weights; %d rounds of %.0f s each, medians\n",
              checkpoint.index.entries.size(), total_bytes / 1e6, weight_mebibytes, rounds,
              kMeasureNs / 1e9);
  MeasureCrc("TensorFlow's", [](uint32_t crc32c, const char* bytes, size_t size) {
    return tsl::crc32c::Extend(crc32c, bytes, size);
  });
  MeasureCrc("ours", tf::ExtendCrc32c);
  PinTo(1);
  ReadByShardReader(checkpoint);
  Victim victim(weight_mebibytes);
  std::vector<Way> ways = AllWays();
  for (int round = 0; round < rounds; ++round) {
    for (Way& way : ways) {
      way.outcomes.push_back(MeasureBeside(victim, checkpoint, way.restore));
    }
  }
  std::printf("%-36s %10s %12s %12s\n", "way", "restore s", "request p50", "p99 us");
  for (Way& way : ways) {
    std::printf("%-36s %10.3f %12.1f %12.1f\n", way.name, MedianOf(way.outcomes, &Outcome::seconds),
                MedianOf(way.outcomes, &Outcome::p50_us), MedianOf(way.outcomes, &Outcome::p99_us));
  }
}

}  // namespace
}  // namespace millpond::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: restore_bench CHECKPOINT_PREFIX [MiB of weights] [rounds]\n");
    return 2;
  }
  millpond::bench::Run(argv[1], argc > 2 ? std::atoi(argv[2]) : 1,
                       argc > 3 ? std::atoi(argv[3]) : 5);
}
