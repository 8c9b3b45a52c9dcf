output "hosts" {
  description = "Number of hosts."
  value       = var.hosts
}
