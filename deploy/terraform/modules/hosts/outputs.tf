output "hosts" {
  description = "Number of hosts."
  value       = local.hosts
}
