// The listening sockets of a server: how addresses are opened, clients accepted, and all is left.

#include "native/rpc/listeners.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "native/rpc/socket_address.h"
#include "tests/native/temporary_directory.h"

namespace millpond::rpc {
namespace {

using Accepted = Listeners::Accepted;

// A descriptor that is closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

int ConnectTo(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// Leaves the process no free descriptor, until the end of the object.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const Descriptor lowest(dup(0));
    const rlimit none{static_cast<rlim_t>(lowest.fd()), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(Listeners, AcceptsEachClientOnce) {
  Listeners listeners;
  ASSERT_TRUE(listeners.Open({"127.0.0.1:0"}).ok());
  AcceptedClient client;
  EXPECT_EQ(listeners.Accept(0, &client), Accepted::kNone);
  const Descriptor connected(ConnectTo(listeners.port()));
  ASSERT_EQ(listeners.Accept(0, &client), Accepted::kClient);
  const Descriptor accepted(client.fd);
  EXPECT_FALSE(client.is_unix);
  EXPECT_EQ(IpTextOf(client.address).address, "127.0.0.1");
  EXPECT_EQ(PortOf(client.address), PortOf(BoundAddress(connected.fd())));
  EXPECT_EQ(listeners.Accept(0, &client), Accepted::kNone);
}

// The port of the second name must not be that of the first.
TEST(Listeners, EachAddressHasItsOwnPort) {
  Listeners listeners;
  ASSERT_TRUE(listeners.Open({"127.0.0.1:0", "localhost:0"}).ok());
  ASSERT_GE(listeners.count(), 2U);
  EXPECT_EQ(PortOf(BoundAddress(listeners.fd(0))), listeners.port());
  const int second = PortOf(BoundAddress(listeners.fd(1)));
  EXPECT_NE(second, listeners.port());
  for (size_t i = 2; i < listeners.count(); ++i) {
    EXPECT_EQ(PortOf(BoundAddress(listeners.fd(i))), second);
  }
}

TEST(Listeners, AnIPv4ClientOfAnIPv6SocketIsIPv4) {
  Listeners listeners;
  if (!listeners.Open({"[::]:0"}).ok()) GTEST_SKIP() << "this machine has no IPv6";
  const Descriptor connected(ConnectTo(listeners.port()));
  AcceptedClient client;
  ASSERT_EQ(listeners.Accept(0, &client), Accepted::kClient);
  const Descriptor accepted(client.fd);
  EXPECT_EQ(IpTextOf(client.address).address, "127.0.0.1");
  EXPECT_FALSE(IpTextOf(client.address).is_ipv6);
}

TEST(Listeners, RemovesTheFileOfItsUnixSocket) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.File("m.sock");
  {
    Listeners listeners;
    ASSERT_TRUE(listeners.Open({"unix:" + path}).ok());
    EXPECT_EQ(listeners.port(), 0);
    const Descriptor connected(ConnectTo(path));
    AcceptedClient client;
    ASSERT_EQ(listeners.Accept(0, &client), Accepted::kClient);
    const Descriptor accepted(client.fd);
    EXPECT_TRUE(client.is_unix);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Listeners, LeavesAUnixSocketThatAnotherTook) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.File("m.sock");
  Listeners second;
  {
    Listeners first;
    ASSERT_TRUE(first.Open({"unix:" + path}).ok());
    ASSERT_TRUE(second.Open({"unix:" + path}).ok());
  }
  const Descriptor connected(ConnectTo(path));
  AcceptedClient client;
  ASSERT_EQ(second.Accept(0, &client), Accepted::kClient);
  close(client.fd);
}

TEST(Listeners, AHandedInSocketOutlivesThem) {
  Listeners holder;
  ASSERT_TRUE(holder.Open({"127.0.0.1:0"}).ok());
  {
    Listeners listeners;
    ASSERT_TRUE(listeners.Open({"fd:" + std::to_string(dup(holder.fd(0)))}).ok());
    EXPECT_TRUE(listeners.is_handed_in(0));
    EXPECT_EQ(listeners.port(), holder.port());
  }
  const Descriptor connected(ConnectTo(holder.port()));
  AcceptedClient client;
  ASSERT_EQ(holder.Accept(0, &client), Accepted::kClient);
  close(client.fd);
}

TEST(Listeners, ItsOwnDescriptorIsNotHandedIn) {
  Listeners holder;
  ASSERT_TRUE(holder.Open({"127.0.0.1:0"}).ok());
  Listeners listeners;
  ASSERT_TRUE(listeners.Open({"own-fd:" + std::to_string(dup(holder.fd(0)))}).ok());
  EXPECT_FALSE(listeners.is_handed_in(0));
  EXPECT_EQ(listeners.port(), holder.port());
}

TEST(Listeners, AnErrorNamesTheAddressAndTheReason) {
  Listeners holder;
  ASSERT_TRUE(holder.Open({"127.0.0.1:0"}).ok());
  const std::string taken = "127.0.0.1:" + std::to_string(holder.port());
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"127.0.0.1", "HOST:PORT"},
      {taken, "in use"},
      {"unix:", "1 to 107 bytes"},
      {"unix:/" + std::string(107, 'a'), "1 to 107 bytes"},
      {"unix:/no/such/directory/m.sock", "No such file"},
      {"fd:x", "a number"},
  };
  for (const auto& [address, reason] : rows) {
    Listeners listeners;
    const base::Status refused = listeners.Open({address});
    EXPECT_EQ(refused.code(), base::Code::kUnavailable);
    EXPECT_NE(refused.message().find(address), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find(reason), std::string::npos) << refused.message();
  }
}

TEST(Listeners, TakesNoMoreAddressesThanThereIsRoomFor) {
  const std::vector<std::string> many(Listeners::kCountMax + 1, "127.0.0.1:0");
  Listeners listeners;
  EXPECT_EQ(listeners.Open(many).code(), base::Code::kUnavailable);
  EXPECT_EQ(listeners.count(), Listeners::kCountMax);
}

// The client learns at once that it is not served, and the next one is served again.
TEST(Listeners, WithoutADescriptorClosesTheClient) {
  Listeners listeners;
  ASSERT_TRUE(listeners.Open({"127.0.0.1:0"}).ok());
  const Descriptor first(ConnectTo(listeners.port()));
  const Descriptor next(ConnectTo(listeners.port()));
  AcceptedClient client;
  {
    const NoDescriptors none;
    EXPECT_EQ(listeners.Accept(0, &client), Accepted::kRefused);
  }
  char byte = 0;
  EXPECT_EQ(recv(first.fd(), &byte, 1, 0), 0);
  ASSERT_EQ(listeners.Accept(0, &client), Accepted::kClient);
  close(client.fd);
}

}  // namespace
}  // namespace millpond::rpc
