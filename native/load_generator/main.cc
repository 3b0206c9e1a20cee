// issue_loop run TARGET PLAN OUTCOME [ROOT_CERTIFICATES [COMPRESSION]]
//   Sends the requests of PLAN to TARGET and writes OUTCOME at the end. Prints "started NS"
//   (CLOCK_MONOTONIC) when it begins. Stops early if standard input closes. ROOT_CERTIFICATES is a
//   PEM file, or - for no TLS. COMPRESSION is identity, deflate or gzip.
// issue_loop null REPLY
//   Answers each call with the bytes of the file REPLY, and prints "listening PORT". Ends when
//   standard input closes.
//
// It is a process of its own, so that neither the interpreter of the load test nor its memory is
// measured. The exit status is 1 if it cannot run, with a line on standard error, and 2 for wrong
// arguments.

#include <grpc/compression.h>
#include <grpc/slice.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/load_generator/issue_loop.h"
#include "native/load_generator/null_server.h"
#include "native/load_generator/outcome.h"
#include "native/load_generator/plan.h"
#include "native/load_generator/realtime.h"

namespace {

using namespace millpond;
using namespace millpond::load_generator;

constexpr int64_t kConnectTimeoutNs = 5'000'000'000;
// The time from the announcement of the run to its first request, in which the threads start.
constexpr int64_t kStartDelayNs = 50'000'000;

// Returns at the end of standard input, which the parent process closes to stop this process.
void WaitForEndOfInput() {
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

int Fail(const std::string& message) {
  std::fprintf(stderr, "issue_loop: %s\n", message.c_str());
  return 1;
}

void Announce(const char* what, int64_t value) {
  std::printf("%s %lld\n", what, static_cast<long long>(value));
  std::fflush(stdout);
}

base::StatusOr<ChannelOptions> ParseChannelOptions(const std::vector<std::string>& arguments) {
  ChannelOptions options;
  if (!arguments.empty() && arguments[0] != "-") {
    std::ifstream file(arguments[0], std::ios::binary);
    options.root_certificates.assign(std::istreambuf_iterator<char>(file), {});
    if (options.root_certificates.empty()) {
      return base::InvalidArgument("no certificates in '" + arguments[0] + "'");
    }
  }
  if (arguments.size() > 1) {
    const grpc_slice name = grpc_slice_from_static_string(arguments[1].c_str());
    if (grpc_compression_algorithm_parse(name, &options.compression) == 0) {
      return base::InvalidArgument("unknown compression '" + arguments[1] +
                                   "'; use identity, deflate or gzip");
    }
  }
  return options;
}

int Run(const std::string& target, const std::string& plan_path, const std::string& outcome_path,
        const std::vector<std::string>& channel_arguments) {
  const base::StatusOr<ChannelOptions> options = ParseChannelOptions(channel_arguments);
  if (!options.ok()) return Fail(options.status().message());
  const base::StatusOr<Plan> plan = ReadPlan(plan_path);
  if (!plan.ok()) return Fail(plan.status().message());
  // Called before gRPC makes its first thread, because its threads inherit the scheduling of their
  // maker.
  const auto priority = static_cast<int>(plan.value().realtime_priority);
  const bool is_realtime = priority > 0 && EnterRealtime(priority);
  IssueLoop loop(plan.value(), target, options.value());
  const base::Status connected = loop.Connect(kConnectTimeoutNs);
  if (!connected.ok()) return Fail(target + ": " + connected.message());
  KeepMemory();

  // Detached, because a read cannot be interrupted. The thread ends with the process.
  std::thread([&loop] {
    WaitForEndOfInput();
    loop.Stop();
  }).detach();
  const int64_t start_ns = base::MonotonicNs() + kStartDelayNs;
  Announce("started", start_ns);
  Outcome outcome = loop.Run(start_ns);
  outcome.is_realtime = is_realtime;
  const base::Status written = WriteOutcome(outcome, outcome_path);
  if (!written.ok()) return Fail(written.message());
  // Exits without a return, because the detached thread may call Stop on the loop.
  std::fflush(nullptr);
  _exit(0);
}

int ServeNull(const std::string& reply_path) {
  std::ifstream file(reply_path, std::ios::binary);
  if (!file) return Fail("reply '" + reply_path + "' cannot be opened");
  const std::string reply{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  NullServer server(reply);
  const base::StatusOr<int> port = server.Start();
  if (!port.ok()) return Fail(port.status().message());
  Announce("listening", port.value());
  WaitForEndOfInput();
  return 0;
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string command = argument_count > 1 ? arguments[1] : "";
  if (command == "run" && argument_count >= 5 && argument_count <= 7) {
    return Run(arguments[2], arguments[3], arguments[4],
               {arguments + 5, arguments + argument_count});
  }
  if (command == "null" && argument_count == 3) return ServeNull(arguments[2]);
  std::fprintf(stderr,
               "usage: issue_loop run TARGET PLAN OUTCOME [ROOT_CERTIFICATES [COMPRESSION]] | "
               "issue_loop null REPLY\n");
  return 2;
}
