// The time of an upload by the size of its chunks and the number under way, and what runs beside it
// wait meanwhile: on any accelerator that a plugin finds.
//
//     upload_bench PLUGIN.so [MEGABYTES [TENSORS [ROUNDS]]]
//
// The memory is pinned in pieces of a chunk each, but for the first line, whose chunks are copied
// to a staging buffer first. A run beside it is a copy of 32 kB that is awaited, every 120 µs.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/chunked_upload.h"
#include "native/pjrt/plugin.h"

namespace millpond::pjrt {
namespace {

constexpr size_t kMiB = size_t{1} << 20U;
constexpr size_t kRunBytes = 32'000;
constexpr int64_t kRunPauseNs = 120'000;
constexpr int64_t kQuietNs = 300'000'000;

double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

// Ends the program after an error: it measures nothing then.
void Check(const base::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// The parameters of a version: tensors of one size, one after the other.
class Parameters {
 public:
  Parameters(size_t bytes, size_t tensor_count) {
    const size_t each = bytes / tensor_count / 64 * 64;
    // A multiple of each size of a chunk, so that each chunk has a piece.
    constexpr size_t kStep = 160 * kMiB;
    bytes_ = (each * tensor_count + kStep - 1) / kStep * kStep;
    void* const taken =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED) Check(base::Internal("no memory"));
    data_ = static_cast<std::byte*>(taken);
    std::memset(data_, 1, bytes_);
    for (size_t i = 0; i < tensor_count; ++i) {
      tensors.push_back({PJRT_Buffer_Type_F32,
                         {static_cast<int64_t>(each / sizeof(float))},
                         data_ + i * each,
                         each});
    }
  }

  // Pins all of it in pieces of `piece_bytes`, until Unpin. Returns the time that took.
  int64_t Pin(PinnedMemory* pinned, size_t piece_bytes) {
    const int64_t began_ns = base::MonotonicNs();
    for (size_t at = 0; at < bytes_ && pinned->Pin(data_ + at, piece_bytes, nullptr);
         at += piece_bytes) {
      pieces_.emplace_back(data_ + at, piece_bytes);
    }
    return base::MonotonicNs() - began_ns;
  }
  size_t pinned_count() const { return pieces_.size(); }
  void Unpin(PinnedMemory* pinned) {
    for (const auto& [start, bytes] : std::exchange(pieces_, {})) {
      if (!pinned->Unpin(start, bytes, nullptr)) std::abort();
    }
  }

  std::vector<HostTensor> tensors;

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  std::vector<std::pair<std::byte*, size_t>> pieces_;
};

// The inputs of runs, one after the other, until Stop.
class Runs {
 public:
  explicit Runs(const Accelerator& accelerator)
      : accelerator_(accelerator),
        staging_(accelerator.MakeStaging(kRunBytes)),
        thread_([this] { Run(); }) {}

  std::vector<int64_t> Stop() {
    stops_.store(true);
    thread_.join();
    return std::move(latencies_ns_);
  }

 private:
  void Run() {
    const StagingPool::Lease inputs = staging_->Take();
    const HostTensor tensor{
        PJRT_Buffer_Type_U8, {static_cast<int64_t>(kRunBytes)}, inputs.data(), kRunBytes};
    while (!stops_.load()) {
      const int64_t began_ns = base::MonotonicNs();
      PJRT_Event* copied = nullptr;
      const auto buffer = accelerator_.StartUpload(tensor, &copied);
      Check(buffer.status());
      Check(accelerator_.api().Await(copied, "copying"));
      Check(buffer.value().AwaitReady());
      latencies_ns_.push_back(base::MonotonicNs() - began_ns);
      base::SleepNs(kRunPauseNs);
    }
  }

  const Accelerator& accelerator_;
  const std::unique_ptr<StagingPool> staging_;
  std::vector<int64_t> latencies_ns_;
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

int64_t Quantile(std::vector<int64_t>* values, double quantile) {
  if (values->empty()) return 0;
  std::sort(values->begin(), values->end());
  return (*values)[static_cast<size_t>(quantile * static_cast<double>(values->size() - 1))];
}

// The time of one upload without the memory's allocation, as UploadFigures have it with.
int64_t UploadOnce(const Accelerator& accelerator, const Parameters& parameters,
                   const ChunkedUpload::Limits& limits, int64_t* with_memory_ns) {
  const int64_t began_ns = base::MonotonicNs();
  const auto transfers = accelerator.MakeTransfers(parameters.tensors);
  Check(transfers.status());
  const std::vector<DeviceBuffer> buffers = transfers.value()->TakeBuffers();
  const int64_t begins_ns = base::MonotonicNs();
  ChunkedUpload upload(accelerator.api(), transfers.value().get(), accelerator.pinned().get(),
                       &accelerator.upload_staging(), limits);
  Check(upload.Send(parameters.tensors, buffers));
  for (const DeviceBuffer& buffer : buffers) Check(buffer.AwaitReady());
  const int64_t end_ns = base::MonotonicNs();
  *with_memory_ns = end_ns - began_ns;
  return end_ns - begins_ns;
}

void PrintRuns(const char* name, std::vector<int64_t> latencies_ns) {
  std::printf("%s p50 %6.3f p99 %6.3f max %7.3f ms (%zu)", name, Ms(Quantile(&latencies_ns, 0.5)),
              Ms(Quantile(&latencies_ns, 0.99)), Ms(Quantile(&latencies_ns, 1)),
              latencies_ns.size());
}

void Measure(const Accelerator& accelerator, const Parameters& parameters,
             const ChunkedUpload::Limits& limits, int rounds) {
  std::vector<int64_t> alone_ns, with_memory_ns, beside_ns, waits_ns;
  for (int round = 0; round < rounds; ++round) {
    int64_t with_memory = 0;
    alone_ns.push_back(UploadOnce(accelerator, parameters, limits, &with_memory));
    with_memory_ns.push_back(with_memory);
    Runs runs(accelerator);
    base::SleepNs(2'000'000);
    beside_ns.push_back(UploadOnce(accelerator, parameters, limits, &with_memory));
    for (const int64_t ns : runs.Stop()) waits_ns.push_back(ns);
  }
  std::printf(
      "%3zu MiB x %2zu: alone p50 %6.2f min %6.2f, with memory %6.2f, beside runs %6.2f ms;",
      limits.chunk_bytes / kMiB, limits.chunk_count, Ms(Quantile(&alone_ns, 0.5)),
      Ms(Quantile(&alone_ns, 0)), Ms(Quantile(&with_memory_ns, 0.5)),
      Ms(Quantile(&beside_ns, 0.5)));
  PrintRuns(" runs", waits_ns);
  std::printf("\n");
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    // `make bench-native` goes on to the next one.
    std::printf("upload_bench PLUGIN.so [MEGABYTES [TENSORS [ROUNDS]]]: needs a plugin\n");
    return 0;
  }
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::max(std::atoi(argv[i]), 1) : otherwise;
  };
  const auto plugin = Plugin::Open(argv[1]);
  Check(plugin.status());
  auto made = Accelerator::MakeAll(plugin.value(), AcceleratorOptions());
  Check(made.status());
  const Accelerator& accelerator = *made.value().front();
  Parameters parameters(static_cast<size_t>(number(2, 500)) * 1'000'000,
                        static_cast<size_t>(number(3, 26)));
  const int rounds = number(4, 7);
  std::printf("%s\n", accelerator.description().c_str());
  {
    Runs runs(accelerator);
    base::SleepNs(kQuietNs);
    PrintRuns("quiet runs", runs.Stop());
    std::printf("\n");
  }
  PinnedMemory* const pinned = accelerator.pinned().get();
  Measure(accelerator, parameters, {}, 2);
  std::printf("the first line is of memory that is not pinned, and of the driver's first memory\n");
  for (const size_t mib : {size_t{4}, size_t{10}, size_t{20}, size_t{32}}) {
    const int64_t pinned_ns = parameters.Pin(pinned, mib * kMiB);
    std::printf("%zu pieces of %zu MiB pinned in %.1f ms, half of which were rests\n",
                parameters.pinned_count(), mib, Ms(pinned_ns));
    for (const size_t count : {size_t{1}, size_t{2}, size_t{3}, size_t{4}, size_t{8}}) {
      Measure(accelerator, parameters, {mib * kMiB, count}, rounds);
    }
    parameters.Unpin(pinned);
  }
  return 0;
}

}  // namespace
}  // namespace millpond::pjrt

int main(int argc, char** argv) { return millpond::pjrt::Main(argc, argv); }
