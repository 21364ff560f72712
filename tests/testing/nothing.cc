// The source file of targets that only provide a precompiled header.
int main() {
  return 0;
}
