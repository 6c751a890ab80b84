"""Description of a data set (`mmjax describe_data`): statistics, comparison of grouping policies, capacities."""
