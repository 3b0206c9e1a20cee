// A fuzzer for builds without libFuzzer. It takes libFuzzer's arguments, as far as it has them:
//
//   NAME_fuzz FILE...                      runs these inputs, for example a saved failure
//   NAME_fuzz [-runs=N] [-seed=N] [-max_total_time=SECONDS] [-artifact_prefix=PREFIX] FOLDER...
//                                          runs all files of the folders, then mutations of them
//
// It saves the input that ends the process, or that takes longer than 25 seconds. It does not
// measure coverage. Unlike libFuzzer, it fails if the mutations do not reach both verdicts.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/native/fuzz/fuzz_target.h"
#include "tests/native/wire_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" [[gnu::weak]] int LLVMFuzzerInitialize(int* argument_count, char*** arguments);

// The sanitizers abort after their report, so that the handler below saves the input.
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1:allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {
  return "abort_on_error=1:allocator_may_return_null=1";
}
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }

namespace millpond::fuzz {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr unsigned kInputSecondsMax = 25;
constexpr size_t kInputBytesMax = 4'096;
// At least one mutation of this many is taken, and one is refused. A run of fewer checks nothing.
constexpr size_t kMutationsPerVerdict = 100;

struct Options {
  uint64_t run_count = UINT64_MAX;
  uint64_t seed = std::random_device()();
  std::chrono::seconds time_max{0};  // 0: no limit
  std::string artifact_prefix;
  std::vector<fs::path> paths;
};

// Read by the signal handler.
const std::string* current_input = nullptr;
char artifact_path[4'096];  // empty while a saved input is replayed

void SaveInput(int signal) {
  if (current_input != nullptr && artifact_path[0] != '\0') {
    const int file = open(artifact_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const bool is_saved =
        write(file, current_input->data(), current_input->size()) == ssize_t(current_input->size());
    std::fprintf(stderr, "%s: the input is %ssaved in %s\n",
                 signal == SIGALRM ? "timeout" : "crash", is_saved ? "" : "NOT ", artifact_path);
  }
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

std::string FileText(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void RunOne(const std::string& input) {
  current_input = &input;
  alarm(kInputSecondsMax);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  current_input = nullptr;
}

// Returns the files of the folders, in the same order on each machine.
std::vector<std::string> Corpus(const std::vector<fs::path>& folders) {
  std::vector<fs::path> files;
  for (const fs::path& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs;
  for (const fs::path& file : files) inputs.push_back(FileText(file));
  return inputs;
}

std::string MutationOf(const std::vector<std::string>& corpus, std::mt19937_64& rng) {
  std::string input = corpus[rng() % corpus.size()];
  if (rng() % 16 == 0) {  // The end of another input after the start of this one.
    const std::string& other = corpus[rng() % corpus.size()];
    input = input.substr(0, rng() % (input.size() + 1)) + other.substr(rng() % (other.size() + 1));
  }
  // Most inputs of more than one change are refused early, so half have one.
  input = testing::Mutate(std::move(input), rng, rng() % 2 == 0 ? 1 : 4);
  return input.size() > kInputBytesMax ? input.substr(0, kInputBytesMax) : input;
}

int Fuzz(const Options& options) {
  const std::vector<std::string> corpus = Corpus(options.paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "the corpus folders hold no file\n");
    return 1;
  }
  for (const std::string& input : corpus) RunOne(input);
  const Verdicts before = VerdictsSoFar();
  std::fprintf(stderr, "Ran %zu inputs: %zu taken, %zu refused\n", corpus.size(),
               before.taken_count, before.refused_count);
  std::mt19937_64 rng(options.seed);
  const auto start = Clock::now();
  uint64_t done_count = 0;
  for (; done_count < options.run_count; ++done_count) {
    if (options.time_max.count() > 0 && Clock::now() - start >= options.time_max) break;
    RunOne(MutationOf(corpus, rng));
  }
  const size_t taken_count = VerdictsSoFar().taken_count - before.taken_count;
  const size_t refused_count = VerdictsSoFar().refused_count - before.refused_count;
  std::fprintf(stderr, "Done %llu mutations of %zu inputs: %zu taken, %zu refused\n",
               static_cast<unsigned long long>(done_count), corpus.size(), taken_count,
               refused_count);
  const size_t count_min = done_count / kMutationsPerVerdict;
  if (taken_count >= count_min && refused_count >= count_min) return 0;
  std::fprintf(stderr, "fewer than 1 in %zu mutations reached one of the verdicts\n",
               kMutationsPerVerdict);
  return 1;
}

// Returns whether `argument` is `-name=value`, and the value.
bool IsFlag(std::string_view argument, std::string_view name, std::string* value) {
  if (argument.substr(0, name.size()) != name) return false;
  *value = argument.substr(name.size());
  return true;
}

Options ParseArguments(int argument_count, char** arguments) {
  Options options;
  for (int i = 1; i < argument_count; ++i) {
    std::string value;
    if (IsFlag(arguments[i], "-runs=", &value)) {
      options.run_count = std::stoull(value);
    } else if (IsFlag(arguments[i], "-seed=", &value)) {
      options.seed = std::stoull(value);
    } else if (IsFlag(arguments[i], "-max_total_time=", &value)) {
      options.time_max = std::chrono::seconds(std::stoll(value));
    } else if (IsFlag(arguments[i], "-artifact_prefix=", &value)) {
      options.artifact_prefix = value;
    } else if (arguments[i][0] != '-') {
      options.paths.emplace_back(arguments[i]);
    }
  }
  return options;
}

int Main(int argument_count, char** arguments) {
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argument_count, &arguments);
  const Options options = ParseArguments(argument_count, arguments);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) {
    std::signal(signal, SaveInput);
  }
  if (std::any_of(options.paths.begin(), options.paths.end(),
                  [](const fs::path& path) { return fs::is_directory(path); })) {
    const auto seed = static_cast<unsigned long long>(options.seed);
    std::fprintf(stderr, "Seed: %llu\n", seed);
    std::snprintf(artifact_path, sizeof artifact_path, "%scrash-seed-%llu",
                  options.artifact_prefix.c_str(), seed);
    return Fuzz(options);
  }
  for (const fs::path& path : options.paths) {
    std::fprintf(stderr, "Running: %s\n", path.c_str());
    RunOne(FileText(path));
  }
  return 0;
}

}  // namespace
}  // namespace millpond::fuzz

int main(int argument_count, char** arguments) {
  return millpond::fuzz::Main(argument_count, arguments);
}
